package core

import (
	"fmt"
	"strings"
)

// Listed formats a list for a sentence and shortens it if it is long.
func Listed(names []string) string {
	const most = 5
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}
