"""Preflight's gang controller: lets the pods of one distributed job find each other."""
