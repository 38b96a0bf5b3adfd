"""What there is: manifests read, checked and looked up by name."""
