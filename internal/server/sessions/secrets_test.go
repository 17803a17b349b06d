package sessions

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/secret"
)

// wantedSecrets are what a node should have: version of each secret, for replica r.
func wantedSecrets(versions map[string]uint64, replicas ...string) map[string]*v1.NodeSecret {
	all := map[string]*v1.NodeSecret{}
	for uid, version := range versions {
		all[secret.ValueUID(uid, version)] = &v1.NodeSecret{Uid: uid, Name: uid, Version: version, Replicas: replicas}
	}
	return all
}

func existing(uids ...string) func(string) bool {
	return func(uid string) bool { return slices.Contains(uids, uid) }
}

func openSmall(key string) []byte { return []byte("value of " + key) }

// describe is a message in short: the versions, with the size of their values and the number of their replicas.
func describe(down *v1.SecretsDown) (lines []string) {
	for _, s := range down.GetSecrets() {
		lines = append(lines, fmt.Sprintf("%s.%d %d bytes for %d", s.GetUid(), s.GetVersion(), len(s.GetValue()), len(s.GetReplicas())))
	}
	for _, uid := range down.GetRemoved() {
		lines = append(lines, uid+" removed")
	}
	return lines
}

func TestNodeGetsAllItsSecretsAndThenWhatChanges(t *testing.T) {
	var n nodeSecrets
	for _, step := range []struct {
		name   string
		wanted map[string]*v1.NodeSecret
		exists []string
		want   []string
	}{
		{"first", wantedSecrets(map[string]uint64{"a": 1, "b": 1}, "r"), []string{"a", "b"}, []string{"a.1 12 bytes for 1", "b.1 12 bytes for 1"}},
		{"nothing new", wantedSecrets(map[string]uint64{"a": 1, "b": 1}, "r"), []string{"a", "b"}, nil},
		{"another replica", wantedSecrets(map[string]uint64{"a": 1, "b": 1}, "r", "s"), []string{"a", "b"}, []string{"a.1 0 bytes for 2", "b.1 0 bytes for 2"}},
		{"a new version", wantedSecrets(map[string]uint64{"a": 2, "b": 1}, "r", "s"), []string{"a", "b"}, []string{"a.2 12 bytes for 2", "a.1 0 bytes for 0"}},
		{"for no replica", wantedSecrets(map[string]uint64{"a": 2}, "r", "s"), []string{"a", "b"}, []string{"b.1 0 bytes for 0"}},
		{"deleted", nil, []string{"b"}, []string{"a removed"}},
	} {
		down, after, rest := n.next(step.wanted, existing(step.exists...), openSmall)
		if got := describe(down); !slices.Equal(got, step.want) || rest || (down == nil) != (step.want == nil) || down.GetFull() != (step.name == "first") {
			t.Errorf("%s: full %v, rest %v: %q, want %q", step.name, down.GetFull(), rest, got, step.want)
		}
		n = after
	}
}

func TestNodeWithoutSecretsIsToldSo(t *testing.T) {
	down, _, _ := (&nodeSecrets{}).next(nil, existing(), openSmall)
	if down == nil || !down.GetFull() || len(down.GetSecrets()) != 0 {
		t.Errorf("it is told %v", down)
	}
}

// A message with many large values would not fit. The full set names all of them, because a node removes what it does not
// name; their values follow.
func TestManyLargeSecretsAreSentInParts(t *testing.T) {
	wanted := wantedSecrets(map[string]uint64{"a": 1, "b": 1, "c": 1}, "r")
	large := func(string) []byte { return bytes.Repeat([]byte("x"), secret.MaxSize) }
	var n nodeSecrets
	held := map[string]bool{}
	for round := range 3 {
		down, after, rest := n.next(wanted, existing("a", "b", "c"), large)
		if n = after; rest != (round < 2) || down.GetFull() != (round == 0) {
			t.Fatalf("round %d: full %v, rest %v", round, down.GetFull(), rest)
		}
		if round == 0 && len(down.GetSecrets()) != 3 {
			t.Errorf("the full set names %d secrets", len(down.GetSecrets()))
		}
		values := 0
		for _, s := range down.GetSecrets() {
			if len(s.GetReplicas()) != 1 {
				t.Errorf("round %d says that %s is for %v", round, s.GetUid(), s.GetReplicas())
			}
			if len(s.GetValue()) > 0 {
				values++
				held[s.GetUid()] = true
			}
		}
		if values != 1 {
			t.Errorf("round %d has %d values", round, values)
		}
	}
	if down, _, rest := n.next(wanted, existing("a", "b", "c"), large); down != nil || rest || len(held) != 3 {
		t.Errorf("afterwards the node has %v, and is told %v", held, describe(down))
	}
}

// A value that cannot be decrypted keeps no other one from its node, and is tried again with the next change.
func TestBrokenSecretKeepsNoOtherBack(t *testing.T) {
	wanted := wantedSecrets(map[string]uint64{"a": 1, "b": 1}, "r")
	down, after, _ := (&nodeSecrets{}).next(wanted, existing("a", "b"), func(key string) []byte {
		if key == "a:1" {
			return nil
		}
		return openSmall(key)
	})
	if got := describe(down); !slices.Equal(got, []string{"b.1 12 bytes for 1"}) {
		t.Errorf("it is told %q", got)
	}
	again, _, _ := after.next(wanted, existing("a", "b"), openSmall)
	if got := describe(again); !slices.Equal(got, []string{"a.1 12 bytes for 1"}) {
		t.Errorf("then it is told %q", got)
	}
}

func TestAcknowledgementCountsForWhatWasSent(t *testing.T) {
	_, one, _ := (&nodeSecrets{}).next(wantedSecrets(map[string]uint64{"a": 1}, "r"), existing("a"), openSmall)
	_, two, _ := one.next(wantedSecrets(map[string]uint64{"a": 2}, "r"), existing("a"), openSmall)
	for key, want := range map[string]bool{"a:1": true, "a:2": true, "a:3": false, "b:1": false} {
		if two.has(key, "r") != want {
			t.Errorf("%s counts: %v", key, !want)
		}
	}
	if two.has("a:2", "other") {
		t.Error("it counts for a replica for which it was not sent")
	}
}

// A node keeps the old version until the value of the next one is sent: no file may be missing meanwhile.
func TestOldVersionIsNotTakenBeforeTheNextOneIsSent(t *testing.T) {
	large := func(string) []byte { return make([]byte, maxSecretBytes) }
	_, n, _ := (&nodeSecrets{}).next(wantedSecrets(map[string]uint64{"b": 1}, "r"), existing("b"), openSmall)
	wanted := wantedSecrets(map[string]uint64{"a": 1, "b": 2}, "r")
	down, n, rest := n.next(wanted, existing("a", "b"), large)
	if got := describe(down); len(got) != 1 || !rest {
		t.Errorf("the first message has %q, rest %v", got, rest)
	}
	down, _, rest = n.next(wanted, existing("a", "b"), large)
	if got := describe(down); len(got) != 2 || got[1] != "b.1 0 bytes for 0" || rest {
		t.Errorf("the second message has %q, rest %v", got, rest)
	}
}
