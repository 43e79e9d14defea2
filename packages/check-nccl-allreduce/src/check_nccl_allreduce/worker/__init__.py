"""What runs under torchrun: the only modules that import torch."""
