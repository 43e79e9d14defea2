"""The controller: what the one replica that leads keeps right."""
