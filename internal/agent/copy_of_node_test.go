package agent

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// setCopied makes the server say that another agent is the node.
func (s *server) setCopied(copied bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.copied = copied
}

// An agent on a copied data folder ends and says why, instead of displacing the node
// forever.
func TestAgentOnACopiedFolderEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.server.setCopied(true)
		n.driver = &handle{tasks: n.tasks}
		agent, err := New(n.options())
		if err != nil {
			t.Fatal(err)
		}
		if err := agent.Run(t.Context()); !errors.Is(err, ErrCopy) || !strings.Contains(err.Error(), "node box runs elsewhere") {
			t.Errorf("Run ended with %v", err)
		}
	})
}

// The real node, once accepted, keeps its replicas even if its copy reaches a new leader
// first.
func TestNodeOutlivesItsCopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		s.send(t, full(assignment("a")))
		s.await(t, "a", "running")
		n.server.setCopied(true)
		close(s.end)
		time.Sleep(time.Minute)
		if got := n.tasks.stopped(); len(got) > 0 {
			t.Errorf("stopped %v", got)
		}
		n.server.setCopied(false)
		s = n.join()
		if first, instance := s.hello.GetInstance(), n.agent.instance; first == "" || first != instance {
			t.Errorf("it says that it is %q, and is %q", first, instance)
		}
	})
}
