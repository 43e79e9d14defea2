"""What people ask: explain and show, with or without a cluster."""
