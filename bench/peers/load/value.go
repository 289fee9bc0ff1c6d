package main

import (
	"math/rand/v2"
	"strconv"
)

const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

// value makes texts of one length that all differ: no server and no file system gains by equal ones.
type value struct {
	text   []byte
	number int
}

func newValue(length, caller int) *value {
	dice := rand.New(rand.NewPCG(uint64(length), uint64(caller)))
	text := make([]byte, length)
	for at := range text {
		text[at] = letters[dice.IntN(len(letters))]
	}
	return &value{text: text}
}

// next returns a text that nobody else holds: clients may keep it until it is sent.
func (v *value) next() []byte {
	v.number++
	text := make([]byte, len(v.text))
	copy(text, v.text)
	strconv.AppendInt(text[:0], int64(v.number), 10)
	return text
}
