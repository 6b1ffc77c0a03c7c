"""What decides a run: a recipe's fields, their rules, and what its entries mean."""
