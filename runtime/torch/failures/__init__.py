"""What becomes of a group when a rank ends, hangs or differs: who knows, who is named, what ends the others' waits."""
