"""The work of one leader of the cluster; it does not know the plugin."""
