package mesh

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func newKey(t testing.TB) PrivateKey {
	t.Helper()
	k, err := NewPrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestKeysAreReadAsWritten(t *testing.T) {
	key := newKey(t)
	again, err := ParsePrivateKey(key.Bytes())
	if err != nil || again.Public() != key.Public() {
		t.Errorf("the private key was read as %v, %v", again, err)
	}
	public, err := ParseKey(key.Public().String())
	if err != nil || public != key.Public() {
		t.Errorf("the public key was read as %v, %v", public, err)
	}
	for _, bad := range []string{"", "hello", strings.Repeat("A", 43) + "="} {
		if _, err := ParseKey(bad); err == nil {
			t.Errorf("%q was taken as a key", bad)
		}
	}
}

func TestPrivateKeyIsNeverPrinted(t *testing.T) {
	key := newKey(t)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		if text := fmt.Sprintf(verb, key); text != "(private key)" {
			t.Errorf("%s prints %q", verb, text)
		}
	}
}

func TestProbesAreReadAsWritten(t *testing.T) {
	ann, bob := newKey(t), newKey(t)
	seal, err := probeSeal(ann, bob.Public())
	if err != nil {
		t.Fatal(err)
	}
	open, err := probeSeal(bob, ann.Public())
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		sent := probe{kind: probePong, number: newNumber(), instance: newInstance(), size: rapid.IntRange(0, 1500).Draw(t, "size")}
		for range rapid.IntRange(0, maxAddresses).Draw(t, "addresses") {
			b := rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "address")
			sent.addresses = append(sent.addresses, netip.AddrPortFrom(netip.AddrFrom4([4]byte(b)), rapid.Uint16().Draw(t, "port")))
		}
		datagram := appendProbe(nil, seal, senderOf(ann.Public()), sent)
		if len(datagram) < sent.size {
			t.Fatalf("%d bytes were to be %d", len(datagram), sent.size)
		}
		if from, ok := isProbe(datagram); !ok || from != senderOf(ann.Public()) {
			t.Fatal("it is not a probe of its sender")
		}
		got, err := openProbe(open, datagram)
		if err != nil || got.kind != sent.kind || got.number != sent.number || got.instance != sent.instance || !slices.Equal(got.addresses, sent.addresses) || got.size != len(datagram) {
			t.Fatalf("%v was read as %v, %v", sent, got, err)
		}
		datagram[rapid.IntRange(0, len(datagram)-1).Draw(t, "changed byte")]++
		if _, err := openProbe(open, datagram); err == nil {
			t.Fatal("a changed probe was accepted")
		}
	})
}

func TestProbeOfAnotherNodeIsRefused(t *testing.T) {
	ann, bob, eve := newKey(t), newKey(t), newKey(t)
	forged, err := probeSeal(eve, bob.Public())
	if err != nil {
		t.Fatal(err)
	}
	open, err := probeSeal(bob, ann.Public())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openProbe(open, appendProbe(nil, forged, senderOf(ann.Public()), probe{kind: probePing})); err == nil {
		t.Error("a probe that another node has sealed was accepted")
	}
}

func FuzzOpenProbe(f *testing.F) {
	ann, bob := newKey(f), newKey(f)
	seal, err := probeSeal(ann, bob.Public())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(appendProbe(nil, seal, senderOf(ann.Public()), probe{kind: probePing, size: 200}))
	f.Fuzz(func(t *testing.T, datagram []byte) {
		_, _ = openProbe(seal, datagram)
		// The content is sealed, so it is fuzzed by sealing it.
		nonce := make([]byte, 24)
		sealed := append(append(append(append([]byte{}, probeMagic[:]...), make([]byte, 8)...), nonce...), seal.Seal(nil, nonce, datagram, append(append([]byte{}, probeMagic[:]...), make([]byte, 8)...))...)
		if p, err := openProbe(seal, sealed); err == nil && len(p.addresses) > maxAddresses {
			t.Errorf("%d addresses", len(p.addresses))
		}
	})
}
