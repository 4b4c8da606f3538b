"""Machines and servers that tests start here: nodes on a network, a Ray cluster, object stores."""
