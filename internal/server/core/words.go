package core

import (
	"fmt"
	"strings"
)

// Listed is a list for a sentence, cut where it gets long.
func Listed(names []string) string {
	const most = 5
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}
