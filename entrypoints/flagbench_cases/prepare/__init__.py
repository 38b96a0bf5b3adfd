"""`prepare`: converts downloaded data and weights into the folders that a run reads."""
