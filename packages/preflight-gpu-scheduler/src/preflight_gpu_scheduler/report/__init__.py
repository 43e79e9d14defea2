"""What people ask: why a pod gets which GPUs, and who has which."""
