"""A module for each op. A kernel fills the memory that it is given on the current stream; what it
does not take, it refuses with an exception. As delivered they are Pestle's."""
