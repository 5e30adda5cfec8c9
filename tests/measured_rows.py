"""Rows as quantities return them."""


def values(rows, *columns, **chosen):
    """Return the values of the rows with the chosen entries by what stands in these columns."""
    found = {}
    for row in rows:
        if all(row[column] == entry for column, entry in chosen.items()):
            place = tuple(row[column] for column in columns)
            found[place if len(columns) > 1 else place[0]] = row["value"]
    return found
