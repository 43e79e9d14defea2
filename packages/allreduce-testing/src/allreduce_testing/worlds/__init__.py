"""Gangs whose truth is known, played through the very localisation of check-nccl-allreduce."""
