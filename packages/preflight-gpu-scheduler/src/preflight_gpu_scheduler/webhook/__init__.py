"""What others ask over HTTP: kube-scheduler its extender, the API server its webhook."""
