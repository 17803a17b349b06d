package main

import (
	"fmt"
	"strings"
)

// labelChoices are labels whose values are distributed over the nodes so that every combination of them occurs equally
// often.
type labelChoices []labelChoice

type labelChoice struct {
	key    string
	values []string
}

// String implements flag.Value.
func (l *labelChoices) String() string {
	var all []string
	for _, choice := range *l {
		all = append(all, choice.key+"="+strings.Join(choice.values, ","))
	}
	return strings.Join(all, " ")
}

// Set implements flag.Value.
func (l *labelChoices) Set(text string) error {
	key, values, ok := strings.Cut(text, "=")
	if !ok || key == "" || values == "" {
		return fmt.Errorf("%q is no label with values: say zone=a,b,c", text)
	}
	*l = append(*l, labelChoice{key, strings.Split(values, ",")})
	return nil
}

// of are the labels of the i-th node.
func (l labelChoices) of(i int) map[string]string {
	labels := map[string]string{}
	for _, choice := range l {
		labels[choice.key] = choice.values[i%len(choice.values)]
		i /= len(choice.values)
	}
	return labels
}
