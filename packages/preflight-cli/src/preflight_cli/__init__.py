"""One command for what people ask of every part of Preflight."""
