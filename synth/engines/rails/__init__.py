"""The engine `rails`: schedules over the rails of nodes that are not alike, such as those with a lost GPU or port."""
