"""The time of one mean of gradients over slow links."""
