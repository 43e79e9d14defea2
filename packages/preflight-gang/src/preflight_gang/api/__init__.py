"""What crosses a border: the types of Kubernetes objects, sources of gangs, codes and the CRD."""
