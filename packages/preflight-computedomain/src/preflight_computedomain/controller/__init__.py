"""The work of one leader of the cluster: templates for ComputeDomains.
It does not know the plugin.
"""
