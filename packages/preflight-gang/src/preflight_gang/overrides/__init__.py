"""PreflightConfigs of namespaces."""
