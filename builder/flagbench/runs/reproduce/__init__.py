"""What `flagbench reproduce` needs: the plan of a row, a look at the machine, and the bundle of the outcome."""
