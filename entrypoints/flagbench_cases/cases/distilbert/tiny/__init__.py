"""The shipped set of the tiny preset: labelled sentences in the shape of SST-2, and the grammar that wrote them."""
