"""Batches of page copies behind one interface: native where loadback-hip is installed, portable everywhere."""
