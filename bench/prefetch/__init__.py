"""What loadback prefetch gains on engines, and what threads that idle cost."""
