"""The same workers and spoolers on the hosts of a Ray cluster.

``cluster`` speaks to Ray, ``host`` lives in an actor, ``session`` drives.
"""
