"""Tests of the gateway, against a scripted upstream over loopback."""
