"""What the quantities of the landscape share, and their arithmetic."""
