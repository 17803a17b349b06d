package main

import "github.com/sirupsen/logrus"

// quiet leaves out what the stock service says when a shim ends: that it cannot watch
// any more for containers that run out of memory. It would reach the terminal of whoever
// stops the node.
type quiet struct{ logrus.Formatter }

func (q quiet) Format(entry *logrus.Entry) ([]byte, error) {
	if entry.Message == "cgroups: epoll wait" {
		return nil, nil
	}
	return q.Formatter.Format(entry)
}
