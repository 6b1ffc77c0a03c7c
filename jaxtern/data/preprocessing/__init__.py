"""What happens to images before the model sees them: geometry where they are decoded, colour in the compiled step."""
