// Package acme obtains certificates from an ACME authority: one order for one host, and the account and the renewal times
// that belong to it. It explains failures in sentences that a user understands, and knows when the authority allows the
// next attempt.
//
// It uses acmez, certmagic's own ACME client, and certmagic's solver for DNS. It must not know where accounts, keys and
// challenges are stored, who answers challenges, or when an order is due.
package acme
