"""Preflight's mutating admission webhook: injects check init containers into GPU pods."""
