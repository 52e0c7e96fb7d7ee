"""Place the experts of a mixture of experts on the ranks of a group, with a proved bound on dispatch and combine."""
