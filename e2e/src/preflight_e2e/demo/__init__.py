"""The demo: one scenario on the simulated cluster, watched while it runs and told afterwards."""
