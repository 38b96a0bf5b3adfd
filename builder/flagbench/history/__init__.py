"""The records of a store: chosen by what they are of, each with its verdict, and the spread between earlier runs."""
