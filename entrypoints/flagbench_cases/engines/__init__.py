"""How ranks compute together, and the check of image and devices before they do."""
