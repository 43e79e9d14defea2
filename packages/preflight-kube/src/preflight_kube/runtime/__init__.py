"""Kit of a controller: reflectors, work queues, election, health and the process around them."""
