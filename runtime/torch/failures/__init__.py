"""Handle a rank that ends, hangs or makes other calls: who learns of it, who is named, and what ends waits for it."""
