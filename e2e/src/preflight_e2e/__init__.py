"""The part of Preflight that proves the rest: scenarios, fakes, cluster providers, benches."""
