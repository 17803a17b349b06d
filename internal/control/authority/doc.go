// Package authority is the leader's loop that replaces the keys that the cluster's trust is based on: the certificate
// authority and the key-encryption key. Each is replaced in three steps, and each step is one transaction, so that any
// leader continues after any crash.
//
//	certificate authority                              key-encryption key
//	distribute  all members learn to trust the next    all servers get the next key into their files
//	renew       all members get certificates of it     everything is sealed by it again ("seal")
//	drop        the old one is trusted no more         the old key leaves the files
//
// Tick is pure but for the making of keys: what is in the state, and what the members report, decide. What a member must
// do follows from the state alone: package membership does it for servers, and package sessions tells nodes.
//
// It does not know how members are asked, nor what a certificate is for.
package authority
