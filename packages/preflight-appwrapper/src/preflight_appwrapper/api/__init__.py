"""Types that cross a border: names, objects, rules, the definition."""
