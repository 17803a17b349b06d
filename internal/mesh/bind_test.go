package mesh

import "testing"

// Two nodes that begin a session at the same time would otherwise wait for five seconds.
func TestOneOfTwoCrossingInitiationsCounts(t *testing.T) {
	var keys [2]PrivateKey
	var peers [2]*peer
	for i := range keys {
		var err error
		if keys[i], err = NewPrivateKey(); err != nil {
			t.Fatal(err)
		}
	}
	for i := range peers {
		m := &Mesh{}
		m.secret.Store(&keys[i])
		peers[i] = newPeer(m, Peer{ID: "node/other", Key: keys[1-i].Public()})
	}
	initiation, data := []byte{handshakeInitiation, 0, 0, 0}, []byte{4, 0, 0, 0}
	for _, p := range peers {
		if p.crosses(initiation) {
			t.Error("an initiation is ignored although we sent none")
		}
		p.initiated.Store(p.mesh.clock())
		if p.crosses(data) {
			t.Error("data are ignored")
		}
	}
	if peers[0].crosses(initiation) == peers[1].crosses(initiation) {
		t.Error("not exactly one of the nodes ignores the other's initiation")
	}
	for _, p := range peers {
		p.count(&p.receivedBytes, []byte{handshakeResponse, 0, 0, 0})
		if p.crosses(initiation) {
			t.Error("an initiation is ignored although ours was answered")
		}
		p.initiated.Store(p.mesh.clock() - int64(2*crossingTime))
		if p.crosses(initiation) {
			t.Error("an initiation is ignored long after ours")
		}
	}
}
