"""What crosses a border: names, types, rules, the definition."""
