"""The controller: informers, cache, reconciles, and writes that are applied."""
