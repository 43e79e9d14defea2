"""What one leader of the cluster does: templates for ComputeDomains.
It does not know the plugin.
"""
