"""Which temporal layers remember objects that stand still: a small study that trains the layers of `rvtssm.ssm`."""
